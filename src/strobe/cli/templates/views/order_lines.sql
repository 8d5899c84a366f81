-- What was ordered: two databases' tables and a file, joined. The price is the catalogue's.
SELECT o.id AS order_id, o.customer_id, c.name AS customer, o.sku, p.title, o.quantity,
       o.quantity * p.price AS amount
FROM shop.orders o
JOIN shop.customers c ON c.id = o.customer_id
JOIN catalog.products p ON p.sku = o.sku
