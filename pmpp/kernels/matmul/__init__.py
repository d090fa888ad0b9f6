from pmpp.kernels.matmul.ladder import *
