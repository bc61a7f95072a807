"""The simulator beside the real thing: recorded scheduler traces and published results."""
