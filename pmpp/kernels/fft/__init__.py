from pmpp.kernels.fft.ladder import *
