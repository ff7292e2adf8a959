# The modules are where the documentation says.
test -f shop/price.py && test -f shop/basket.py
