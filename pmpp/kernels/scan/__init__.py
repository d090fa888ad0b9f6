from pmpp.kernels.scan.ladder import *
