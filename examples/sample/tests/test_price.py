import unittest

from shop.price import show_price, total_price


class Price(unittest.TestCase):
    def test_items_are_added_up(self):
        self.assertEqual(total_price([{"price": 150, "count": 2}]), 300)

    def test_prices_have_two_digits(self):
        self.assertEqual(show_price(5), "0.05 EUR")
