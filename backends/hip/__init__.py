"""HIP for CDNA: device headers, hermetic toolchain, lint and resource checks."""
