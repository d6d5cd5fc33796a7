"""`torchyard perf-test`: a matrix product and an inference, under current and tuned settings."""
