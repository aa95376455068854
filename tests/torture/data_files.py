from torture.campaign import Campaign, Tally
CAMPAIGN = Campaign("data files", 3, lambda r, f: Tally())
