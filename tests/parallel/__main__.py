"""`python -m tests.parallel`: planted mistakes of programs for several ranks, and look-alikes that are left alone."""

from .programs import PROGRAMS, alarms, faults


def main() -> None:
    named, silent = [not faults(one) for one in PROGRAMS], [not alarms(one) for one in PROGRAMS]
    width = 2 + max(len(one.name) for one in PROGRAMS)
    print(f"{'program of several ranks':{width}}{'its mistake':14}its look-alike")
    for one, found, quiet in zip(PROGRAMS, named, silent, strict=True):
        print(f"{one.name:{width}}{'named' if found else 'NOT NAMED':14}{'silent' if quiet else 'FALSE ALARM'}")
    print(f"{'all':{width}}{f'{sum(named)} / {len(PROGRAMS)}':14}{sum(silent)} / {len(PROGRAMS)}")


if __name__ == "__main__":
    main()
