"""Values between processes: what changed in a rank, what can travel, and how it lands.

`twins` knows the notebook's objects by identity on both sides of the fork and finds what a rank
changed; `graph` pickles values as one object graph in which those objects stand for themselves;
`parcel` lays the pickles and their buffers out in a memory file, and the kernel reads large memory straight
from the rank (`remote`); `landing` writes what arrived
into the notebook.
"""
