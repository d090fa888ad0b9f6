from pmpp.kernels.convolution.ladder import *
