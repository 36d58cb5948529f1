"""The files that formats keep their arrays in: HDF5, NumPy, gzip, Arrow, images, and what is built of these.

They know nothing of the formats above them, and ``formats/core`` knows nothing of them.
"""
