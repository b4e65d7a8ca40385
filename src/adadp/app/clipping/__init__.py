"""Clip rules beyond ``flat`` of the core.

text                                             bound of one record      additional release
per-layer:C or per-layer:C_1,C_2,...             sqrt(sum of C_g^2)       none
per-layer-joint:C                                C                        none
automatic:C,gamma=0.01                           C                        none
quantile:C,...                                   C of the step            a noisy count per batch
"""
