-- Orders with their payments, from two databases that know nothing of each other.
SELECT o.id AS order_id, p.id AS payment_id, o.customer_id, c.name AS customer, o.placed, p.amount, p.method
FROM shop.orders o
JOIN shop.customers c ON c.id = o.customer_id
JOIN billing.payments p ON p.order_id = o.id
WHERE p.state = 'paid'
