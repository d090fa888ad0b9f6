from pmpp.kernels.activation.ladder import *
