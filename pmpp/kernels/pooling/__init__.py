from pmpp.kernels.pooling.ladder import *
