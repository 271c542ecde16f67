# The device kernels: a fat binary that is embedded, when there is an nvcc.
