from torture.campaign import Campaign, Tally
CAMPAIGN = Campaign("fuzz", 12, lambda r, f: Tally())
