from pmpp.kernels.softmax.ladder import *
