"""`python -m tests.parallel`: planted mistakes that are named, and look-alikes that are left alone."""

from .programs import PROGRAMS, alarms, faults


def main() -> None:
    named, silent = [not faults(one) for one in PROGRAMS], [not alarms(one) for one in PROGRAMS]
    for one, found, quiet in zip(PROGRAMS, named, silent, strict=True):
        print(f"{one.name:48}{'named' if found else 'NOT NAMED':12}{'silent' if quiet else 'FALSE ALARM'}")
    print(f"{'all':48}{f'{sum(named)} / {len(PROGRAMS)}':12}{sum(silent)} / {len(PROGRAMS)}")


if __name__ == "__main__":
    main()
