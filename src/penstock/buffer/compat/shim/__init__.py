"""What a generator's own process finds on `sys.path`: the package `generator`, and small stand-ins for what generators import, last of all.

`generator/` comes first there, so that files written for the original buffer find their names. `fallback/` comes last, so that an installed `openai`,
`requests` or `tqdm` is always preferred. Only `penstock.buffer.compat.generators.child` puts them there; the server never does.
"""
