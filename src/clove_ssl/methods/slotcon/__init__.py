"""SlotCon: semantic grouping and slot contrast (Wen et al., 2022)."""

CONFIGS = {"slotcon": "config:SlotConConfig"}
