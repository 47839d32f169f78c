"""As much of TensorRT as the recorder's caller reads."""

__version__ = "10.14.1.48"
