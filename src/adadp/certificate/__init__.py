"""The certificate of a run: made from its ledger, and verified from the files of its folder alone. No torch.

make.py     what is certified, computed from the ledger          wording.py    the sentences that follow from that
verify.py   a finished run checked against itself                digests.py    digests of JSON and of tensor files
"""
