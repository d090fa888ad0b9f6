from pmpp.kernels.vector_add.ladder import *
