<?php

// src/Message/SendMail.php

namespace App\Message;

final class SendMail
{
    public string $to;

    public function __construct(string $to)
    {
        $this->to = $to;
    }
}
