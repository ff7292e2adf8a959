import unittest

from shop.basket import Basket


class Delivery(unittest.TestCase):
    # Fails on purpose: delivery is not in the basket yet.
    def test_delivery_is_in_the_basket(self):
        self.assertEqual(str(Basket().add("tea", 1200)), "2 items, 15.00 EUR")
