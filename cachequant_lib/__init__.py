"""CacheQuant: from-scratch, measured code for fast language-model inference on an ordinary CPU.

``import cachequant_lib as cq`` is all a reader needs. Names are loaded when first used, so the import itself
compiles nothing and pulls in neither Numba nor a model.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
