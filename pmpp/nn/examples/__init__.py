"""Networks that are trained by one command: ``python -m pmpp.nn.examples.digits``."""
