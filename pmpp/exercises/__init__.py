"""What `pmpp.lab.exercise.check` checks, a module a room: ``EXERCISES``, a tuple of ``pmpp.lab.exercise.Exercise``."""
