"""All scripts, one after another, by the same ranks: ``python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples``."""

from pmpp.parallel.examples import digits, layers, machines, plate, stages, sums
from pmpp.parallel.examples.same import main

SCRIPTS = (sums, digits, layers, stages, plate, machines)

if __name__ == "__main__":
    main(*SCRIPTS)
