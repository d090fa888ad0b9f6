"""Shapes that nobody chose: every room measured on drawn shapes, beside the better of PyTorch and CuPy.

::

    python -m pmpp.lab.measure.shapes                       on a GPU: measures what the record lacks, and reports
    python -m pmpp.lab.measure.shapes --rooms matmul fft    the same for some rooms
    python -m pmpp.lab.measure.shapes --draw                prints the shapes, anywhere
    python -m pmpp.lab.measure.shapes --report              prints the recorded table beside the targets, anywhere

`drawing` has the rule by which shapes are drawn. It was written before any kernel was changed for it.
`pmpp.kernels.instruments.shapes` says for each room what is called, who the rivals are and how a result is verified.
`running` measures and keeps the record ``pmpp/recorded/<gpu>/shapes.json``, and `report` compares it with the targets.
`pmpp.lab.draw.shapes` draws it.
"""
