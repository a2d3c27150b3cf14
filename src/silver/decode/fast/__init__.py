"""The fast decoders: records just as the contract declares, a batch at a time."""
