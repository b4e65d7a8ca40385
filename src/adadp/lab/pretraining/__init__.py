"""Networks trained on public images without privacy, whose frozen layers are features: one module for each."""
