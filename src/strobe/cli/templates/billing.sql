CREATE TABLE payments (
    id INTEGER PRIMARY KEY,
    order_id INTEGER NOT NULL,
    amount DECIMAL(10, 2) NOT NULL,
    method TEXT NOT NULL,
    state TEXT NOT NULL
);
CREATE INDEX payments_by_order ON payments (order_id);
INSERT INTO payments VALUES
    (1, 101, 24.90, 'card', 'paid'),
    (2, 102, 26.00, 'card', 'open'),
    (3, 103, 39.00, 'transfer', 'paid');
