from pmpp.kernels.transpose.ladder import *
