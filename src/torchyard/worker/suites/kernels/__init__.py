"""The suite `kernels`: one operator or one small chain each, with shapes as parameters."""
