"""Pictures are made ready: archives or class folders become train/<class>/, val/<class>/ and an index.

open.py           the set that a recipe names: prepared already, or made ready now
sets.py           the sets that are known by name
prepare.py        the way of a preparation, through
inputs.py           what a folder holds: a tree (trees.py) or archives (tar_batches.py, archives.py)
demo.py             or what is inside the package
devkit.py           the labels of ImageNet's validation pictures
pictures.py         pictures before they are looked at
identity.py         were they prepared before?
look.py             every picture is looked at (check.py), and what is done is marked
splits.py           val is taken from train where there is none
judge.py            what there is to say about the whole
place.py            pictures of a tree are put into another folder
index.py            the index is written, and read
image_set.py      what comes out: a prepared set
"""
