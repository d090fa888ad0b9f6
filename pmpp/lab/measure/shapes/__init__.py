"""Shapes that nobody chose: every room measured on drawn shapes, beside the better of PyTorch and CuPy.

::

    python -m pmpp.lab.measure.shapes                       on a GPU: measures what the record lacks, and reports
    python -m pmpp.lab.measure.shapes --rooms matmul fft    the same for some rooms
    python -m pmpp.lab.measure.shapes --part 2/4 --seconds 85 --out two.json     a part of all shapes, on one of 4 GPUs
    python -m pmpp.lab.measure.shapes --merge one.json two.json                  the parts into the record, anywhere
    python -m pmpp.lab.measure.shapes --draw                prints the shapes, anywhere
    python -m pmpp.lab.measure.shapes --report              prints the recorded table beside the targets, anywhere

`drawing` has the rule by which shapes are drawn. It was written before any kernel was changed for it.
`pmpp.kernels.instruments.shapes` says for each room what is called, who the rivals are and how a result is verified.
`running` measures and keeps the record ``pmpp/recorded/<gpu>/shapes.json``, `together` does so with a process a room,
and `report` compares the record with the targets.
`pmpp.lab.draw.shapes` draws it.
"""
