"""Methods of AdaDP beyond DP-SGD: the private ADADP, in coordinates scaled by what was released."""
