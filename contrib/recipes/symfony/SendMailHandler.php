<?php

// src/MessageHandler/SendMailHandler.php

namespace App\MessageHandler;

use App\Message\SendMail;
use Symfony\Component\Messenger\Attribute\AsMessageHandler;

#[AsMessageHandler]
final class SendMailHandler
{
    public function __invoke(SendMail $message): void
    {
        if (! str_contains($message->to, '@')) {
            throw new \InvalidArgumentException("{$message->to} is no address");
        }
        echo "sent to {$message->to}\n";
    }
}
