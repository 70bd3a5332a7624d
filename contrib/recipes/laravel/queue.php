<?php

// config/queue.php: the entry `beanstalkd` of `connections`.
return [
    'default' => env('QUEUE_CONNECTION', 'beanstalkd'),
    'connections' => [
        'beanstalkd' => [
            'driver' => 'beanstalkd',
            'host' => env('BEANSTALKD_QUEUE_HOST', '127.0.0.1'),
            'port' => (int) env('BEANSTALKD_QUEUE_PORT', 11300),
            'queue' => env('BEANSTALKD_QUEUE', 'mail'),
            // The time to run of each job. It must be longer than the worker's --timeout.
            'retry_after' => 90,
            // A worker waits this long in a reserve, and then looks whether it is to stop.
            'block_for' => 5,
            // A job is put when the transaction of the database is committed.
            'after_commit' => true,
        ],
    ],
];
