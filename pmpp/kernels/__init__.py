"""The kernels: a folder for each subject, and in it one room or several.

A *room* is a module with one family of kernels, from a naive one to one measured beside the vendor's libraries. A
subject with one room has it in ``ladder.py``, and gives its names itself; a subject with several names each::

    from pmpp.kernels import reduction  # reduction.LADDER, reduction.reference, reduction.vectorised(x)
    from pmpp.kernels.convolution_layer import winograd

`pmpp.lab.rooms.rooms()` finds them all. CONTRIBUTING.md says how a room is written.
"""
