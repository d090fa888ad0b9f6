from pmpp.kernels.reduction.ladder import *
