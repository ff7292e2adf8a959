from shop.price import show_price, total_price


class Basket:
    def __init__(self):
        self.items = []

    def add(self, name, price, count=1):
        self.items.append({"name": name, "price": price, "count": count})
        return self

    def __str__(self):
        return f"{len(self.items)} items, {show_price(total_price(self.items))}"
