"""The parts of bench/make_model.py: shapes, tensors, random values, block encodings and files."""
