# TODO: discounts
def total_price(items):
    return round(sum(item["price"] * item["count"] for item in items))


def show_price(cents):
    return f"{cents / 100:.2f} EUR"
