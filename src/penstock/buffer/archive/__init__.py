"""The archive: bytes of groups that nothing will happen to any more, moved out of the hot store into Parquet files.

    rows.py       a group as rows: typed columns, and the accepted bytes as they came
    schema.py     the columns, and what each means; `docs/archive.md` is made from it
    files.py      writes a file under a hidden name, and gives it its own once the store knows it
    reading.py    the bytes of one rollout, out of a file
    retention.py  which files may go
    archiver.py   the background task of the service that does all this in small pieces

What stays in the store is what the laws look at: records of groups, members, rollouts and annotations, plans and outcomes, and for each payload the file
and row where its bytes are. So the same uid is still known, and a fetch does not notice.

Needs pyarrow (`pip install 'penstock[archive]'`), which is loaded only when a file is written or read.
"""
