"""Where references come from: a random program generator, installed libraries, and folders of the user.

Every source names its references by plain data (`Job`), so that any process can turn one into source text and specs.
"""
