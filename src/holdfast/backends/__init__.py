"""The stores. Siblings never import each other; only the composition root imports them."""
