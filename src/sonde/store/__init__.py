"""The run store: one folder per run, on disk or below a URL; a reader never sees half a state.

A folder has `run.json` (configuration and facts), the rows as Parquet, the weights as safetensors, and `manifest.json`,
which names the files of the current state with their checksums.  Files are written aside and renamed: a file that has
its name is whole, after a power failure too, and the rename of the manifest makes an epoch visible.  Nothing is
pickled.  Below a URL (fsspec) a put replaces the rename: contents first, the manifest last; passing failures are tried
again, and a lock is a lease.

Reading.  A store may come from anybody.  Every file is compared with its checksum, an id must be that of its
configuration, sizes are bounded from headers before anything is decoded, no symbolic link is followed and no code is
run.  `sonde verify` reads everything.  Stores of 0.1.0 have no checksums; they are read, and reported as such.

Index.  Ended runs are read from an index: a pack of pieces, each with the rows of one family of metrics in a block of
runs.  A query for some metrics, layers or runs reads the pieces it needs.  Every other run is read from its folder.
Readers write the index when enough runs are not in it.

Watched runs are appended to: chunks with checksums in a journal, folded into Parquet parts that the manifest names.

Status.  The manifest says what was reached, not whether anybody still works on it.  A process that works on a run
writes a heartbeat beside its lock.  With a recent heartbeat a run is running, with an old one stalled, without a
process interrupted.  Data sets are found, fetched, verified and decoded here too.
"""
